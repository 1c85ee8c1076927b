// Package file has sources and sinks for files. A source reads the lines of
// files, which may grow and be rotated. A sink appends lines to a file.
//
// [Source] reads whole lines. It keeps its positions in a file of its own or in
// a [Session]. [Sink] appends lines and syncs them before it reports success.
// [Stream] writes lines to a pipe or a terminal. [Session] is for pipelines
// whose keys are in an embedded store. Keys, the length of the output and the
// positions of the source are one record of the store, so each line has its
// effect once, even after a power loss.
//
// With [CSV], [TSV] and [JSON] a message is a row or a document. Otherwise it is a
// line without its line end ("\n" or "\r\n"). The output is the body and "\n".
package file
