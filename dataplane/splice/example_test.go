package splice_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

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

// A client's handshake, what it sends, and the connection to the server that is chosen by it.
func ExampleCookies() {
	cookies, err := splice.NewCookies(nil, &splice.Offer{MSS: 1400, NoTimestamps: true, Window: 2048})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Now()
	tuple := splice.Tuple{Client: netip.MustParseAddrPort("192.0.2.9:40000"), Service: netip.MustParseAddrPort("192.0.2.80:80")}
	answer := cookies.Answer(now, tuple, &splice.Segment{Seq: 1000, Flags: splice.SYN, Options: splice.Options{MSS: 1460}})
	fmt.Println("promised: MSS", answer.Options.MSS, "window", answer.Window)

	// Nothing is kept until the client returns the answer's number.
	limits, err := splice.Limits{Budget: 2048}.WithDefaults()
	if err != nil {
		fmt.Println(err)
		return
	}
	ack := splice.Segment{Seq: 1001, Ack: answer.Seq + 1, Flags: splice.ACK, Payload: []byte("GET / HTTP/1.1\r\n\r\n")}
	start, ok := cookies.Check(now, tuple, &ack)
	if !ok {
		fmt.Println("forged")
		return
	}
	var emit splice.Emit = func(to splice.Side, s *splice.Segment) { fmt.Printf("to the %v: flags %#x\n", to, s.Flags) }
	c := start.Conn(now, limits)
	event, _ := c.FromClient(now, &ack, emit)
	fmt.Println(event, len(c.Data()), c.State())
	c.Connect(now, emit)
	fmt.Println(c.State(), c.State() == splice.Connecting)
	// Output:
	// promised: MSS 1400 window 2048
	// to the client: flags 0x10
	// more data 18 collecting
	// to the server: flags 0x2
	// connecting true
}
