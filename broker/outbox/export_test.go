package outbox

// ExamineAfter is Examine with a patience of its own.
var ExamineAfter = examine
