package pcapdev_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/lbprim/lbprim/dataplane/pcapdev"
)

// recorded is a pcap file of two packets of 4 bytes, as raw IP, a second apart.
const recorded = "\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00\x65\x00\x00\x00" +
	"\x01\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x04\x00\x00\x00" + "\x45\x00\x00\x14" +
	"\x02\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x04\x00\x00\x00" + "\x45\x00\x00\x15"

// How many packets of a capture were read, and what could not be.
func ExampleDevice_Stats() {
	device, err := pcapdev.Open(strings.NewReader(recorded), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer device.Close()
	bufs, sizes := [][]byte{make([]byte, 65536)}, make([]int, 1)
	for {
		if _, err := device.Read(bufs, sizes, 16); errors.Is(err, io.EOF) {
			break
		}
		fmt.Println(device.Now().UTC(), sizes[0])
	}
	var st pcapdev.Stats = device.Stats() //nolint:staticcheck // the name of the type is what is shown
	fmt.Printf("%+v\n", st)
	// Output:
	// 1970-01-01 00:00:01 +0000 UTC 4
	// 1970-01-01 00:00:02 +0000 UTC 4
	// {Read:2 Skipped:0 Written:0}
}

// What is written to the device becomes a capture, too.
func ExampleConfig() {
	var out bytes.Buffer
	device, err := pcapdev.Open(strings.NewReader(recorded), &pcapdev.Config{Out: &out, BatchSize: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer device.Close()
	bufs, sizes := [][]byte{make([]byte, 65536)}, make([]int, 1)
	for {
		if _, err := device.Read(bufs, sizes, 16); errors.Is(err, io.EOF) {
			break
		}
		if _, err := device.Write([][]byte{bufs[0][:16+sizes[0]]}, 16); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(out.Len() == len(recorded))
	// Output: true
}
