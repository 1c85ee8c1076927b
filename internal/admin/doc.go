// Package admin shows a running process to other processes: probes, metrics and status over
// HTTP, and its stores, parked messages and journal, which a client reads as if they were its
// own.
//
// A client sends a question as the JSON body of POST /ask. The answer is lines of
// JSON, of which the last says that it is whole. There are two ways to a process: the
// socket in the directory of an embedded store, see [ListenIn] and [Dial], and its admin
// server. Through the socket, the user of the process may also change keys.
package admin

// QuestionPath is the path of questions on the server of a process. JournalPath is that of
// its journal, for people without this client.
const (
	QuestionPath = "/ask"
	JournalPath  = "/journal"
)
