// Command afpacket uses package dataplane/afpacket alone. What it prints needs no privilege: the faults of a Config.
package main

import (
	"fmt"

	"github.com/lbprim/lbprim/dataplane/afpacket"
)

func main() {
	_, err := afpacket.Open(&afpacket.Config{Interfaces: []string{"eth0", "eth0"}})
	fmt.Println(err)
}
