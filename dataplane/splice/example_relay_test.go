package splice_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/dataplane/splice"
)

// Each request of a connection may go to a server of its own: after one is answered, its server's connection is parked.
func ExampleRelay() {
	now := time.Now()
	cookies, err := splice.NewCookies(nil, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	limits, err := splice.Limits{}.WithDefaults()
	if err != nil {
		fmt.Println(err)
		return
	}
	var syn, sent splice.Segment // the last ones to the server
	emit := func(to splice.Side, s *splice.Segment) {
		switch {
		case to != splice.Server:
		case s.Flags&splice.SYN != 0:
			syn = *s
		case len(s.Payload) > 0:
			sent = *s
			fmt.Printf("to the server: %q\n", s.Payload)
		}
	}
	tuple := splice.Tuple{Client: netip.MustParseAddrPort("192.0.2.9:40000"), Service: netip.MustParseAddrPort("192.0.2.80:80")}
	answer := cookies.Answer(now, tuple, &splice.Segment{Seq: 1000, Flags: splice.SYN, Options: splice.Options{MSS: 1460}})
	request := splice.Segment{Seq: 1001, Ack: answer.Seq + 1, Flags: splice.ACK, Window: 60000, Payload: []byte("GET /a HTTP/1.1\r\n\r\n")}
	start, ok := cookies.Check(now, tuple, &request)
	if !ok {
		return
	}
	conn := start.Conn(now, limits)
	conn.Follow() // beyond the first request
	conn.FromClient(now, &request, emit)
	conn.Connect(now, emit)
	event, _ := conn.FromServer(now, &splice.Segment{Seq: 9000, Ack: syn.Seq + 1, Flags: splice.SYN | splice.ACK, Window: 60000, Options: splice.Options{MSS: 1460}}, emit)
	fmt.Println(event)

	var relay *splice.Relay = conn.Relay(now) //nolint:staticcheck // the name of the type is what is shown
	fmt.Printf("to be judged: %q\n", relay.Data())
	relay.Release(now, len(relay.Data()))
	relay.Flush(now, emit)
	relay.FromServer(now, &splice.Segment{Seq: 9001, Ack: sent.Seq + uint32(len(sent.Payload)), Flags: splice.ACK, Window: 60000}, emit)
	if relay.Quiet() {
		saved, ok := relay.Save() // a splice.Saved, for another process
		fmt.Println("to be saved:", ok, saved.Relay(now, limits, cookies).Quiet())
		var idle splice.Parked = relay.Park(emit) //nolint:staticcheck // the name of the type is what is shown
		next := relay.Leave(now, false, emit)     // for the next request: Connect to another server, or go back to this one
		fmt.Println("back again:", next.Resume(now, idle).Quiet())
	}
	// Output:
	// established
	// to be judged: "GET /a HTTP/1.1\r\n\r\n"
	// to the server: "GET /a HTTP/1.1\r\n\r\n"
	// to be saved: true true
	// back again: true
}
