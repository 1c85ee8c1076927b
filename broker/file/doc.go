// Package file has files as sources and sinks of pipelines: lines are read
// from files, which may grow and be rotated meanwhile, and appended to files.
//
// [Source] reads whole lines and remembers how far it is, in a file of its own
// or with a [Session]. [Sink] appends lines and syncs them before it reports
// success; [Stream] writes them to a pipe or a terminal. [Session] is the
// session of a pipeline whose keys are in an embedded store beside the output:
// keys, the length of the output and the positions of the source are one record
// of the store, so that each line has its effect once, also over loss of power.
//
// A message is a line without its line end ("\n" or "\r\n"). What is written is
// the body and "\n".
package file
