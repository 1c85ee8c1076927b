// Package remotestore asks a running process about the stores that it has open, and answers
// for it.
//
// A client sends a [Question] as the JSON body of POST /ask. The answer is lines of
// JSON, of which the last says that it is whole. There are two ways to a process: the
// socket in the directory of an embedded store, see [Listen] and [Dial], and its admin
// server. Through the socket, the user of the process may also change keys.
package remotestore

// Path is the path of questions on the server of a process. JournalPath is that of its
// journal, for people without this client.
const (
	Path        = "/ask"
	JournalPath = "/journal"
)
