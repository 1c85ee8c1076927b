// Package members knows what the members of a Transactor do, and what keeps them from
// working.
package members
