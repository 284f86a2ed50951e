// Command pcapdev uses package dataplane/pcapdev alone, on a capture of one packet.
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"strings"

	"github.com/lbprim/lbprim/dataplane/pcapdev"
)

func main() {
	const capture = "\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00\x65\x00\x00\x00" + // raw IP
		"\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x04\x00\x00\x00" + "\x45\x00\x00\x14"
	device, err := pcapdev.Open(strings.NewReader(capture), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	bufs, sizes := [][]byte{make([]byte, 2048)}, make([]int, 1)
	for {
		if _, err := device.Read(bufs, sizes, 16); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("pcapdev:", device.Stats().Read, "packet of", sizes[0], "bytes")
}
