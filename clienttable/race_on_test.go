//go:build race

package clienttable

const raceEnabled = true
