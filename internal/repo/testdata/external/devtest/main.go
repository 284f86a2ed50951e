// Command devtest uses package dataplane/devtest alone.
package main

import (
	"fmt"
	"log"

	"github.com/lbprim/lbprim/dataplane/devtest"
)

func main() {
	a, b, err := devtest.Pair(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer a.Close()
	if _, err := a.Write([][]byte{[]byte("a packet")}, 0); err != nil {
		log.Fatal(err)
	}
	bufs, sizes := [][]byte{make([]byte, 1500)}, make([]int, 1)
	n, err := b.Read(bufs, sizes, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("devtest:", n, string(bufs[0][:sizes[0]]))
}
