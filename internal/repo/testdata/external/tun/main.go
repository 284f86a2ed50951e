// Command tun uses package dataplane/tun alone. What it prints needs no privilege: the faults of a Config.
package main

import (
	"fmt"

	"github.com/lbprim/lbprim/dataplane/tun"
)

func main() {
	_, err := tun.Open(&tun.Config{MTU: 576})
	fmt.Println(err)
}
