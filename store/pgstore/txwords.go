package pgstore

import "strings"

// The functions below look for words in the text of statements, to know which
// can have to do with the beginning and end of transactions. They know no SQL:
// a word in a literal or a comment is found as well. Who is told that there is
// one looks closer, and so nothing is refused for a word.

// mayBegin reports whether a text may begin a transaction: BEGIN, START
// TRANSACTION, or COMMIT AND CHAIN. Columns have such names too, which ends no
// transaction.
func mayBegin(sql string) bool {
	if !hasWord(sql, "begin", "chain", "transaction") {
		return false // as nearly all: one look
	}
	return hasWord(sql, "begin") || hasWord(sql, "transaction") && commands(sql, "start", "prepare") ||
		hasWord(sql, "chain") && commands(sql, "abort", "commit", "end", "rollback")
}

// mayCommit reports whether a text that may begin a transaction may commit one
// before.
func mayCommit(sql string) bool {
	return commands(sql, "commit", "prepare") || hasWord(sql, "chain") && commands(sql, "end")
}

// mayEnd reports whether a text may begin or end a transaction, or call what can
// where the server has begun one by itself.
func mayEnd(sql string) bool {
	return hasWord(sql, "abort", "begin", "commit", "rollback") || commands(sql, "call", "end", "prepare", "start")
}

// commands reports whether one of the words may be a command: it begins the text, or
// stands in one of several statements or behind a comment. END, for one, stands at
// the end of CASE as well.
func commands(sql string, words ...string) bool {
	if !hasWord(sql, words...) {
		return false
	}
	sql = strings.Trim(sql, "; \t\r\n")
	if strings.Contains(sql, ";") || strings.Contains(sql, "--") || strings.Contains(sql, "/*") {
		return true
	}
	for _, word := range words {
		if n := len(word); len(sql) >= n && strings.EqualFold(sql[:n], word) && (len(sql) == n || !isLetter(sql[n])) {
			return true
		}
	}
	return false
}

// hasWord reports whether one of the words, which are in lower case, stands in a
// text in any case and not as part of a longer word. It is called for each
// statement and so allocates nothing.
func hasWord(sql string, words ...string) bool {
	var first uint32 // a bit for each letter that begins a word
	for _, word := range words {
		first |= 1 << (word[0] - 'a')
	}
	inside := false
	for i := range len(sql) {
		letter := isLetter(sql[i])
		if letter && !inside && first&(1<<(sql[i]|0x20-'a')) != 0 {
			for _, word := range words {
				end := i + len(word)
				if sql[i]|0x20 == word[0] && end <= len(sql) && strings.EqualFold(sql[i:end], word) && (end == len(sql) || !isLetter(sql[end])) {
					return true
				}
			}
		}
		inside = letter
	}
	return false
}

// isLetter reports whether a byte is a letter or the underscore. Digits are
// none: behind a number a word may begin.
func isLetter(b byte) bool {
	return b == '_' || 'a' <= b|0x20 && b|0x20 <= 'z'
}
