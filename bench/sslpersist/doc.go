// Package sslpersist compares the session-ID parser and table with what else a Go program
// could use: a walk with cryptobyte, crypto/tls itself, gopacket's TLS layer, and
// golang-lru for the table.
//
//	go test -run Ratios -v ./sslpersist
//
// prints ratios of interleaved rounds, medians, by processor time; the benchmarks beside
// it give the plain figures.
package sslpersist
