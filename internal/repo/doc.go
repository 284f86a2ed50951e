// Package repo has no code of its own: its tests hold the repository to its own
// rules, such as which package may import which.
package repo
