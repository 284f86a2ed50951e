//go:build !race

package sslpersist

const underRace = false
