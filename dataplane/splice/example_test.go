package splice_test

import (
	"encoding/binary"
	"fmt"

	"github.com/lbprim/lbprim/dataplane/splice"
)

// changes prints what a Translation changes, where a data plane would update the checksum.
type changes struct{}

func (changes) Long(from, to uint32)    { fmt.Println("32 bits:", from, "to", to) }
func (changes) LongOdd(from, to uint32) { fmt.Println("32 bits at an odd offset:", from, "to", to) }
func (changes) Word(from, to uint16)    { fmt.Println("16 bits:", from, "to", to) }

// The client has been told 5,000 as the first sequence number, and the server chose 9,000 later.
func ExampleChange() {
	client, server := uint32(5000), uint32(9000)
	t := splice.Translation{Seq: client - server}
	segment := make([]byte, 20)
	binary.BigEndian.PutUint32(segment[4:], 9001)
	segment[12], segment[13] = 5<<4, 0x10 // 20 bytes of header; ACK
	t.ToClient(segment, changes{})
	fmt.Println("to the client:", binary.BigEndian.Uint32(segment[4:]))
	binary.BigEndian.PutUint32(segment[8:], 5001)
	t.ToServer(segment, changes{})
	fmt.Println("to the server:", binary.BigEndian.Uint32(segment[8:]))
	// Output:
	// 32 bits: 9001 to 5001
	// to the client: 5001
	// 32 bits: 5001 to 9001
	// to the server: 9001
}
