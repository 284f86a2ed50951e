package sslpersist_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/lbprim/lbprim/sslpersist"
)

// hello is a ClientHello of TLS 1.2 with the given session ID, in one record.
func hello(id []byte) []byte { return handshake(1, id, []byte{0, 2, 0xc0, 0x2f, 1, 0}) }

// reply is the ServerHello that answers it.
func reply(id []byte) []byte { return handshake(2, id, []byte{0xc0, 0x2f, 0}) }

func handshake(typ byte, id, rest []byte) []byte {
	body := slices.Concat([]byte{3, 3}, make([]byte, 32), []byte{byte(len(id))}, id, rest)
	n := len(body)
	return slices.Concat([]byte{22, 3, 1, 0, byte(n + 4), typ, 0, 0, byte(n)}, body)
}

func ExampleParseClientHello() {
	b := hello([]byte{0xca, 0xfe})
	_, err := sslpersist.ParseClientHello(b[:20])
	fmt.Println(errors.Is(err, sslpersist.ErrShort))
	h, err := sslpersist.ParseClientHello(b)
	fmt.Println(h.Version, h.SessionID, err)
	// Output:
	// true
	// TLS 1.2 cafe <nil>
}

func ExampleParser() {
	var p sslpersist.Parser
	for _, c := range reply([]byte{0xca, 0xfe}) { // a byte at a time
		h, err := p.Server([]byte{c})
		if errors.Is(err, sslpersist.ErrShort) {
			continue
		}
		fmt.Println(h.Version, h.SessionID, err)
	}
	// Output: TLS 1.2 cafe <nil>
}

func ExampleHandshake() {
	var h sslpersist.Handshake
	_, _ = h.Client(hello(nil))
	_, _ = h.Server(reply([]byte{0xca, 0xfe}))
	for l, ok := h.Next(); ok; l, ok = h.Next() {
		fmt.Println(l.Kind, l.ID)
	}
	// Output: learn ID cafe
}

func ExampleTable() {
	t, err := sslpersist.NewTable(&sslpersist.Config[string]{
		MaxEntries: 1000,
		TTLOf: func(n string) time.Duration {
			if n == "slow" {
				return time.Hour
			}
			return 0 // the default, 10 minutes
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Now()
	id, _ := sslpersist.SessionIDFrom([]byte{0xca, 0xfe})
	fmt.Println(t.LearnAt(now, id, "slow"))
	fmt.Println(t.LookupAt(now.Add(59*time.Minute), id))
	fmt.Println(t.Forget("slow"))
	fmt.Println(t.LookupAt(now, id))
	// Output:
	// <nil>
	// slow true
	// 1
	//  false
}

func ExampleKeyTable() {
	t, err := sslpersist.NewKeyTable(&sslpersist.KeyConfig[string]{MaxEntries: 1000})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Now()
	ticket := func(serial byte) sslpersist.TicketMark {
		b := append([]byte("name of the key."), make([]byte, 100)...)
		b[50] = serial
		return sslpersist.MarkTicket(b)
	}
	_ = t.LearnAt(now, ticket(1), "a", false)
	fmt.Println(t.Len()) // one ticket does not make a name
	_ = t.LearnAt(now, ticket(2), "a", false)
	fmt.Println(t.LookupAt(now, t.Name(ticket(3))))
	// Output:
	// 0
	// a true
}

func ExampleFarm() {
	farm, err := sslpersist.NewFarm(&sslpersist.Settings[string]{Ports: []uint16{443, 8443}})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Now()
	available := func(string) sslpersist.Availability { return sslpersist.Up }

	first := farm.Open(netip.MustParseAddr("192.0.2.1"))
	_, _ = first.Client(hello(nil))
	fmt.Println(first.Choose(now, available).By)
	first.Bind(now, "server 2") // by the metric
	_, _ = first.Server(now, reply([]byte{0xca, 0xfe}))

	second := farm.Open(netip.MustParseAddr("2001:db8::7"))
	_, _ = second.Client(hello([]byte{0xca, 0xfe}))
	choice := second.Choose(now, available)
	fmt.Println(choice.By, choice.Node)
	fmt.Println(farm.Stats().BySession, farm.Stats().IDs.Learned)
	// Output:
	// metric
	// session ID server 2
	// 1 1
}

func ExampleAddrTable() {
	farm, err := sslpersist.NewFarm(&sslpersist.Settings[string]{ClientAddr: true, Feed: 100})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Now()
	client := netip.MustParseAddr("192.0.2.1")
	first := farm.Open(client)
	_, _ = first.Client(hello(nil))
	first.Bind(now, "server 2")

	second := farm.Open(client)
	_, _ = second.Client(hello(nil))
	choice := second.Choose(now, func(string) sslpersist.Availability { return sslpersist.Up })
	fmt.Println(choice.By, choice.Node)
	for addr, node := range farm.Addrs().All() {
		fmt.Println(addr, node)
	}
	// Output:
	// client address server 2
	// 192.0.2.1 server 2
}

func ExampleAppendDelta() {
	a, _ := sslpersist.NewTable(&sslpersist.Config[int]{Feed: 100})
	b, _ := sslpersist.NewTable[int](nil)
	id, _ := sslpersist.SessionIDFrom([]byte{0xca, 0xfe})
	_ = a.Learn(id, 7)

	names := map[string]int{"seven": 7}
	changes, _ := a.Changes(nil, 0)
	wire, err := sslpersist.AppendDelta(nil, changes[0], func(int) string { return "seven" })
	if err != nil {
		fmt.Println(err)
		return
	}
	d, _, known, err := sslpersist.ParseDelta(wire, func(s string) (int, bool) { n, ok := names[s]; return n, ok })
	fmt.Println(len(wire), known, err, b.Apply(time.Now(), d))
	fmt.Println(b.Lookup(id))
	// Output:
	// 28 true <nil> <nil>
	// 7 true
}

func ExampleFarm_WriteSnapshot() {
	old, _ := sslpersist.NewFarm[string](nil)
	id, _ := sslpersist.SessionIDFrom([]byte{0xca, 0xfe})
	_ = old.IDs().Learn(id, "a")
	file, err := os.CreateTemp("", "sessions")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.Remove(file.Name())
	defer file.Close()
	fmt.Println(old.WriteSnapshot(file, time.Now(), func(n string) string { return n }))

	_, _ = file.Seek(0, 0)
	fresh, _ := sslpersist.NewFarm[string](nil)
	st, err := fresh.Restore(file, time.Now(), func(s string) (string, bool) { return s, true })
	fmt.Println(st.Restored, err)
	// Output:
	// <nil>
	// 1 <nil>
}

func ExampleTable_Changes() {
	a, _ := sslpersist.NewTable(&sslpersist.Config[string]{Feed: 100})
	b, _ := sslpersist.NewTable[string](nil)
	id, _ := sslpersist.SessionIDFrom([]byte{0xca, 0xfe})
	_ = a.Learn(id, "a")

	changes, _ := a.Changes(nil, 0)
	for _, d := range changes {
		fmt.Println(d.Seq, d.Op, d.ID, d.Node, b.Apply(time.Now(), d))
	}
	fmt.Println(b.Lookup(id))
	// Output:
	// 1 learn cafe a <nil>
	// a true
}
