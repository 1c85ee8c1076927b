package kept

// Found is what a partition knows of the records of an id in a window.
type Found struct {
	// First and Last are the bounds of the window, or the times of the first and the last
	// record of a session.
	First, Last int64
	// Deadline is the watermark at which the record takes effect.
	Deadline int64
	// Known says that a record is held. When and Offset are its time and its offset.
	Known        bool
	When, Offset int64
}

// At returns what is held of an id in the window or the sessions that have a time. If
// nothing is, it returns the window of a record of that time. No transaction is open. It
// is for rules with Size or Gap.
func (s *State) At(id string, when int64) (list []Found) {
	r := &s.rule
	var start, end int64
	if r.Size > 0 {
		start, end = r.window(when)
	}
	for _, e := range s.open[id] {
		h := Found{e.first, e.last, e.deadline, true, e.when, e.offset}
		switch {
		case r.Size > 0 && e.first == start:
			h.Last = e.deadline
		case r.Gap > 0 && e.first <= when+r.Gap && e.last >= when-r.Gap:
		default:
			continue
		}
		list = append(list, h)
	}
	if len(list) == 0 && r.Size > 0 {
		list = append(list, Found{First: start, Last: end, Deadline: end})
	} else if len(list) == 0 {
		list = append(list, Found{First: when, Last: when, Deadline: when + r.Gap + 1})
	}
	return list
}
