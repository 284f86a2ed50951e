package flowshare_test

import (
	"fmt"
	"net/netip"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
)

// Both directions of a connection are one flow.
func ExampleFlow() {
	a, b := netip.MustParseAddrPort("192.0.2.1:443"), netip.MustParseAddrPort("10.0.0.1:4711")
	f := flowshare.MakeFlow(6, a, b)
	fmt.Println(f, f == flowshare.MakeFlow(6, b, a), f.Protocol())
	// Output: 6 10.0.0.1:4711-192.0.2.1:443 true 6
}

// Who holds a flow depends on the members' names alone: when one goes, the flows of the others stay where they are.
func ExamplePlacement() {
	names := []string{"lb1", "lb2", "lb3", "lb4", "lb5"}
	five := flowshare.NewPlacement(nil, names, 2)
	four := flowshare.NewPlacement(five, names[:4], 2)
	moved := 0
	for slot := range flowshare.Slots {
		for i, h := range four.Holders(slot) {
			before := five.Names()[five.Holders(slot)[i]]
			if before != "lb5" && before != four.Names()[h] && five.Names()[five.Holders(slot)[0]] != "lb5" {
				moved++
			}
		}
	}
	fmt.Println(len(five.Holders(0)), four.Names(), moved)
	// Output: 2 [lb1 lb2 lb3 lb4] 0
}

// limited is a Store of the plainest kind.
type limited map[flowshare.Flow]flowshare.Item

func (s limited) Load(f flowshare.Flow) (flowshare.Item, bool) { it, ok := s[f]; return it, ok }
func (s limited) Save(f flowshare.Flow, it flowshare.Item)     { s[f] = it }
func (s limited) Delete(f flowshare.Flow)                      { delete(s, f) }
func (s limited) Len() int                                     { return len(s) }
func (s limited) Range(part int, visit func(flowshare.Flow, flowshare.Item) bool) {
	for f, it := range s {
		if flowshare.SlotOf(f)%flowshare.Parts == part && !visit(f, it) {
			return
		}
	}
}

// Entries can be kept anywhere, and frames sent by anything.
func ExampleStore() {
	store := limited{}
	l, err := flowshare.New(&flowshare.Config{Self: flowshare.Member{Name: "lb1", Epoch: 1}, Transport: &direct{frames: make(chan []byte, 1)}, Store: store})
	if err != nil {
		panic(err)
	}
	f := flowshare.MakeFlow(17, netip.MustParseAddrPort("10.0.0.1:4711"), netip.MustParseAddrPort("192.0.2.1:53"))
	l.Announce(f, flowshare.Value{Node: "sh1", Note: "dns"})
	v, ok := l.Lookup(f)
	fmt.Println(v.Node, v.Note, ok, store.Len(), l.Stats().Own)
	l.Withdraw(f)
	_, ok = l.Lookup(f)
	fmt.Println(ok, store[f].Flags&flowshare.Tombstone != 0)
	// Output:
	// sh1 dns true 1 1
	// false true
}
