// Command cluster uses package steering/cluster alone.
package main

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/lbprim/lbprim/steering/cluster"
)

func main() {
	c, err := cluster.New(&cluster.Config{Name: "external", Node: "lb1", Bind: netip.MustParseAddrPort("127.0.0.1:0"), Keys: [][]byte{[]byte("sixteen bytes, at least")}})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	fmt.Println("cluster:", c.Members(), c.State())
	cancel()
	<-done
}
