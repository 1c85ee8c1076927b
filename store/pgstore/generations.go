package pgstore

// ringTables is the number of tables between which generations rotate.
const ringTables = 3

// turn counts what the rotator has done.
type turn int64

// overlap reports whether a new generation is being begun.
func (t turn) overlap() bool { return t%2 == 1 }

// upper is the table that new records go to.
func (t turn) upper() int { return int((t + 1) / 2 % ringTables) }

// lower is the table of records of the generation before.
func (t turn) lower() int { return (turn.upper(t) + ringTables - 1) % ringTables }

// retired is the table that the rotator empties, if generations overlap, or
// will empty next: the lower one.
func (t turn) retired() int { return turn(t - t%2).lower() }
