// Command splice uses package dataplane/splice alone.
package main

import (
	"fmt"

	"github.com/lbprim/lbprim/dataplane/splice"
)

type checksum struct{ changes int }

func (c *checksum) Long(_, _ uint32)    { c.changes++ }
func (c *checksum) LongOdd(_, _ uint32) { c.changes++ }
func (c *checksum) Word(_, _ uint16)    { c.changes++ }

func main() {
	client, server := uint32(5000), uint32(9000) // first sequence numbers: the client was told one, the server chose the other
	t := splice.Translation{Seq: client - server}
	segment := make([]byte, 20)
	segment[6], segment[7] = 9001>>8, 9001&0xff
	segment[12], segment[13] = 5<<4, 0x10 // 20 bytes of header; ACK
	var c checksum
	t.ToClient(segment, &c)
	fmt.Println("splice:", int(segment[6])<<8|int(segment[7]), c.changes)
}
