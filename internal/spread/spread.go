// Package spread distributes clients over workers. Everything that does, in the kernel or here, uses one function, so
// that a packet and its answer meet one worker wherever they were sorted.
package spread

import "encoding/binary"

// Odd constants with evenly spread bits.
const (
	C1 = 0x9e3779b1
	C2 = 0x85ebca6b
)

// Fold makes one word of an address of 4 or 16 bytes.
func Fold(a []byte) uint32 {
	x := binary.BigEndian.Uint32(a)
	for a = a[4:]; len(a) >= 4; a = a[4:] {
		x = (x + binary.BigEndian.Uint32(a)) * C1
	}
	return x
}

// Hash returns the hash of an endpoint, of 16 bits: what is to be taken modulo the number of workers. Packets
// without ports, and fragments, have port 0.
func Hash(addr uint32, port uint16) uint32 { return (addr*C1 + uint32(port)) * C2 >> 16 }
