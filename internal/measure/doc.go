// Package measure says which metrics there are and what each event of a guard
// or a pipeline counts, whatever keeps the values: see package promobserve and
// package otelobserve.
//
// No label is made of anything that a message carries. Labels are names of a
// configuration, and words of lists that are fixed here; a word that is in no
// list counts as "other".
package measure
