// Command flowexport uses package dataplane/flowexport alone.
package main

import (
	"bytes"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/dataplane/flowexport"
)

func main() {
	var collector bytes.Buffer // a UDP socket, usually
	exporter, err := flowexport.New(&flowexport.Config{Collector: &collector})
	if err != nil {
		log.Fatal(err)
	}
	now := time.Now()
	err = exporter.Add(&flowexport.Flow{
		Src: netip.MustParseAddrPort("198.51.100.7:4711"), Dst: netip.MustParseAddrPort("192.0.2.80:80"), Protocol: 6,
		Octets: 1500, Packets: 3, Start: now.Add(-time.Second), End: now, Reason: flowexport.EndOfFlow,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := exporter.Flush(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("flowexport:", exporter.Stats().Records, collector.Len() > 0)
}
