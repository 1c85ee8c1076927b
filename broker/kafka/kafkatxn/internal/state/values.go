package state

// Values leaves the long values of a state in a Disk. Without one, all values stay in
// memory.
type Values struct {
	// Inline is the length of the longest value that stays in memory.
	Inline int

	disk *Disk
	left bool // a value was left
}

// SetCopy sets the copy of the state's changelog, or nil. The state is empty. An error of
// the copy is returned by the method that needs it, and the state must then be built again.
func (v *Values) SetCopy(d *Disk) { v.disk = d }

// Detach reports whether the state has never left a value in the copy. It then needs no
// copy, and keeps all values in memory from now on.
func (v *Values) Detach() bool {
	if v.left {
		return false
	}
	v.disk = nil
	return true
}

// Leaves reports whether a value is left in the copy.
func (v *Values) Leaves(value []byte) bool { return v.disk != nil && len(value) > v.Inline }

// Leave returns the place of a value that is left in the copy. The record at a place has
// the value at an offset.
func (v *Values) Leave(p Place, at int, value []byte) Ref {
	v.left = true
	return p.Part(at, value)
}

// Load appends a value that was left to dst.
func (v *Values) Load(dst []byte, ref Ref) ([]byte, error) { return v.disk.Read(dst, ref) }

// CopyErr returns the error with which the copy failed.
func (v *Values) CopyErr() error { return v.disk.Err() }
