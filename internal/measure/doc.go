// Package measure defines the metrics, and what each event of a guard or a
// pipeline counts. Package promobserve keeps the values.
//
// No label is made from the content of a message. Labels are names of a
// configuration, and words of fixed lists. A word outside its list counts as
// "other".
package measure
