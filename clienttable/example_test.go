package clienttable_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/clienttable"
)

// A table that remembers the server of each flow, and gives the place of a session
// back when its entry leaves.
func Example() {
	sessions, err := clienttable.New(&clienttable.Config[clienttable.Flow, uint32]{
		MaxEntries: 1000,
		TTL:        time.Minute,
		OnRemove: func(f clienttable.Flow, node uint32, why clienttable.Reason) {
			fmt.Printf("node %d: %v (%v)\n", node, f, why)
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sessions.Close()

	now := time.Now()
	flow := clienttable.MakeFlow(6, netip.MustParseAddrPort("192.0.2.9:1024"), netip.MustParseAddrPort("198.51.100.7:80"))
	node, known, err := sessions.LoadOrStoreAt(now, flow, 7)
	fmt.Println(node, known, err)
	node, known = sessions.LoadAt(now.Add(59*time.Second), flow)
	fmt.Println(node, known)
	sessions.Sweep(now.Add(2*time.Minute), 100)
	// Output:
	// 7 false <nil>
	// 7 true
	// node 7: tcp 192.0.2.9:1024 > 198.51.100.7:80 (expired)
}

// All entries of a server that goes down are invisible at once.
func ExampleTable_Invalidate() {
	table, _ := clienttable.New(&clienttable.Config[uint64, uint32]{
		Owner: func(node uint32) uint32 { return node },
	})
	defer table.Close()
	_ = table.Store(1, 7)
	_ = table.Store(2, 8)
	table.Invalidate(7)
	_, first := table.Load(1)
	_, second := table.Load(2)
	fmt.Println(first, second)
	_ = table.Store(1, 7) // it is up again
	_, first = table.Load(1)
	fmt.Println(first)
	// Output:
	// false true
	// true
}

// The state of a TCP session is kept in the value and decides for how long the
// entry lives.
func ExampleTable_Update() {
	type session struct {
		node uint32
		_    uint32
		tcp  clienttable.TCPState
	}
	timers, err := clienttable.NewTimers(&clienttable.Ageing{Idle: 5 * time.Minute, Ports: []clienttable.PortAge{{Port: 22, Age: time.Hour}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	table, _ := clienttable.New[clienttable.Flow, session](nil)
	defer table.Close()
	now := time.Now()
	flow := clienttable.MakeFlow(6, netip.MustParseAddrPort("192.0.2.9:1024"), netip.MustParseAddrPort("198.51.100.7:80"))

	s := session{node: 7}
	s.tcp.Update(clienttable.FromClient, clienttable.TCPSyn, 1000, 0, 0)
	_, _, _ = table.LoadOrStoreLife(now, flow, s, timers.TCP(s.tcp, 80, clienttable.EntryPerSession))

	packet := func(d clienttable.Dir, flags uint8, seq, ack uint32) {
		table.Update(now, flow, func(s session, l clienttable.Life) (session, clienttable.Life) {
			switch s.tcp.Update(d, flags, seq, ack, 0) {
			case clienttable.TCPOpened, clienttable.TCPEnded, clienttable.TCPRestarted:
				l = timers.TCP(s.tcp, 80, clienttable.EntryPerSession)
			}
			return s, l
		})
		s, in, _ := table.Info(now, flow)
		fmt.Println(s.tcp.Phase(), in.Life.Class, in.Life.TTL)
	}
	packet(clienttable.FromServer, clienttable.TCPSyn|clienttable.TCPAck, 5000, 1001)
	packet(clienttable.FromClient, clienttable.TCPAck, 1001, 5001)
	packet(clienttable.FromClient, clienttable.TCPRst, 99, 0) // somebody guesses
	packet(clienttable.FromClient, clienttable.TCPRst, 1001, 0)
	// Output:
	// syn-received half-open 5s
	// established established 5m0s
	// established established 5m0s
	// reset lingering 5m0s
}

// Clients of a /24 share a server.
func ExampleGrouping() {
	group, _ := clienttable.NewGrouping(24, 64)
	for _, client := range []string{"192.0.2.1", "192.0.2.2", "192.0.3.1"} {
		fmt.Println(clienttable.FarmKey(3, netip.MustParseAddr(client), group))
	}
	a := clienttable.RegularKey(17, netip.MustParseAddr("2001:db8::1"), netip.MustParseAddrPort("[2001:db8::53]:53"), group)
	fmt.Println(a)
	// Output:
	// 192.0.2.0 > farm 3
	// 192.0.2.0 > farm 3
	// 192.0.3.0 > farm 3
	// 2001:db8:: > udp [2001:db8::53]:53
}

// A restart keeps its sessions.
func ExampleTable_WriteTo() {
	before, _ := clienttable.New[uint64, uint64](nil)
	defer before.Close()
	_ = before.Store(1, 7)
	var file bytes.Buffer
	_, err := before.WriteTo(&file)
	fmt.Println(err)

	after, _ := clienttable.New[uint64, uint64](nil)
	defer after.Close()
	file.Bytes()[80] ^= 1
	_, err = after.ReadFrom(bytes.NewReader(file.Bytes()))
	fmt.Println(err)
	file.Bytes()[80] ^= 1
	_, err = after.ReadFrom(&file)
	fmt.Println(err, after.Len())
	// Output:
	// <nil>
	// clienttable: snapshot refused: at byte 98: the checksum of the block that ends here is wrong
	// <nil> 1
}

// A follower keeps a copy: a snapshot first, then the changes after it.
func ExampleTable_Changes() {
	leader, _ := clienttable.New(&clienttable.Config[uint64, uint64]{ChangeLog: 1000})
	follower, _ := clienttable.New[uint64, uint64](nil)
	defer leader.Close()
	defer follower.Close()
	_ = leader.Store(1, 7)
	var file bytes.Buffer
	_, _ = leader.WriteTo(&file)
	_ = leader.Store(2, 8)
	leader.Delete(1)

	now := time.Now()
	restored, _ := follower.ReadSnapshot(now, &file)
	seq := restored.Seq
	var buf [100]clienttable.Change[uint64, uint64]
	for {
		n, err := leader.Changes(seq, buf[:])
		if n == 0 || err != nil { // ErrChangesLost: begin again with a snapshot
			break
		}
		for _, c := range buf[:n] {
			fmt.Println(c.Seq, c.Op, c.Key)
		}
		_ = follower.Apply(now, buf[:n]...)
		seq = buf[n-1].Seq
	}
	for k, v := range follower.All() {
		fmt.Println(k, v)
	}
	// Output:
	// 2 stored 2
	// 3 removed 1
	// 2 8
}
