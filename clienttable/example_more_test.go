package clienttable_test

import (
	"fmt"
	"time"

	"github.com/lbprim/lbprim/clienttable"
)

// A full table prefers to part with what is worth least.
func ExampleStats() {
	table, err := clienttable.New(&clienttable.Config[uint64, uint32]{
		MaxEntries: 2,
		Full:       clienttable.EvictOldest,
		Layout:     clienttable.Packed, // or an error, should the types not allow it
		OnRemove: func(k uint64, _ uint32, why clienttable.Reason) {
			fmt.Println("entry", k, why)
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer table.Close()
	now := time.Now()
	_ = table.StoreAt(now, 1, 7)
	_ = table.StoreLife(now, 2, 7, clienttable.Life{TTL: 5 * time.Second, Class: clienttable.HalfOpen})
	_ = table.StoreAt(now.Add(time.Second), 3, 8)   // in place of the half-open one
	_ = table.StoreAt(now.Add(2*time.Second), 4, 8) // in place of the oldest
	st := table.Stats()
	fmt.Println(st.Entries, st.Bound, st.Stores, st.Evicted, table.Layout())
	// Output:
	// entry 2 evicted
	// entry 1 evicted
	// 2 2 4 2 packed
}

// The two older switches of a farm, and the mode each setting stands for.
func ExampleLegacyMode() {
	for _, s := range [][2]bool{{false, false}, {true, false}, {true, true}} {
		m := clienttable.LegacyMode(s[0], s[1])
		fmt.Println(m, m.FullKey(), m.SameServer(), m.RemoveOnEnd())
	}
	// Output:
	// regular false true false
	// entry-per-session true true false
	// server-per-session true false false
}

// A session that was idle for too long is closed at the ends that the farm names,
// by an RST with numbers that they accept.
func ExampleTCPState_Reset() {
	timers, err := clienttable.NewTimers(&clienttable.Ageing{CloseAtAgeing: clienttable.CloseServer})
	if err != nil {
		fmt.Println(err)
		return
	}
	var s clienttable.TCPState
	var last clienttable.TCPEvent
	s.Update(clienttable.FromClient, clienttable.TCPSyn, 1000, 0, 0)
	s.Update(clienttable.FromServer, clienttable.TCPSyn|clienttable.TCPAck, 5000, 1001, 0)
	last = s.Update(clienttable.FromClient, clienttable.TCPAck, 1001, 5001, 0)
	fmt.Println(last)
	for _, to := range []clienttable.Dir{clienttable.FromClient, clienttable.FromServer} {
		if timers.CloseAtAgeing().To(to) {
			seq, ack, ok := s.Reset(to)
			fmt.Println("RST to the", to, seq, ack, ok)
		}
	}
	// Output:
	// opened
	// RST to the server 1001 5001 true
}
