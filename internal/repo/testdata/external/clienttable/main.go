// Command clienttable uses package clienttable alone.
package main

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/lbprim/lbprim/clienttable"
)

func main() {
	table, err := clienttable.New[clienttable.Flow, uint32](nil)
	if err != nil {
		log.Fatal(err)
	}
	defer table.Close()
	flow := clienttable.MakeFlow(6, netip.MustParseAddrPort("198.51.100.7:4711"), netip.MustParseAddrPort("192.0.2.80:80"))
	if err := table.Store(flow, 3); err != nil {
		log.Fatal(err)
	}
	server, known := table.Load(flow)
	fmt.Println("clienttable:", server, known)
}
