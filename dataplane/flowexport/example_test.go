package flowexport_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/dataplane/flowexport"
)

// One flow in ten is exported, chosen by its hash: all its reports or none.
func ExampleSampler() {
	s := flowexport.NewSampler(10)
	chosen := 0
	for hash := uint64(0); hash < 1000; hash++ {
		h := hash * 0x9e3779b97f4a7c15 // as evenly spread as hashes are
		if s.Sampled(h) {
			chosen++
		}
	}
	fmt.Println(chosen > 50 && chosen < 150)
	fmt.Println(flowexport.Sampler{}.Sampled(1), "without a rate, all are")
	// Output:
	// true
	// true without a rate, all are
}

// The first word of a message is the protocol's version.
func ExampleVersion() {
	now := time.Unix(1_700_000_000, 0)
	for _, v := range []flowexport.Version{flowexport.IPFIX, flowexport.NetFlow9} {
		var message bytes.Buffer // a UDP socket, usually
		x, err := flowexport.New(&flowexport.Config{Collector: &message, Version: v})
		if err != nil {
			fmt.Println(err)
			return
		}
		err = x.AddAt(now, &flowexport.Flow{
			Src: netip.MustParseAddrPort("192.0.2.9:40000"), Dst: netip.MustParseAddrPort("192.0.2.80:443"), Protocol: 6,
			Octets: 1500, Packets: 3, Start: now.Add(-time.Second), End: now, Reason: flowexport.EndOfFlow,
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		if err := x.FlushAt(now); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(v, binary.BigEndian.Uint16(message.Bytes()))
	}
	// Output:
	// ipfix 10
	// netflow9 9
}
