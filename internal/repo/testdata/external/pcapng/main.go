// Command pcapng uses package dataplane/pcapng alone.
package main

import (
	"bytes"
	"fmt"
	"log"
	"time"

	"github.com/lbprim/lbprim/dataplane/pcapng"
)

func main() {
	var file bytes.Buffer
	w, err := pcapng.NewWriter(&file, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := w.Write(time.Now(), 0, []byte{0x45, 0, 0, 20}, "dropped: no policy"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("pcapng:", w.Stats().Packets, bytes.Contains(file.Bytes(), []byte("no policy")))
}
