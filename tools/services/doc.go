// Command services starts real servers for tests and demonstrations.
package main

func main() {}
