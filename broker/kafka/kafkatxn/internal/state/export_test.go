package state

// From returns the position before the first record.
func (d *Disk) From() int64 { return d.from }
