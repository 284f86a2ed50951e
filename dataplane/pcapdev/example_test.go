package pcapdev_test

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/lbprim/lbprim/dataplane/pcapdev"
)

// How many packets of a capture were read, and what could not be.
func ExampleDevice_Stats() {
	f, err := os.Open("capture.pcap")
	if err != nil {
		fmt.Println(errors.Is(err, os.ErrNotExist), "there is none here")
		return
	}
	defer f.Close()
	device, err := pcapdev.Open(f, nil)
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
		fmt.Println(device.Now(), sizes[0])
	}
	var st pcapdev.Stats = device.Stats() //nolint:staticcheck // the name of the type is what is shown
	fmt.Printf("%+v\n", st)
	// Output: true there is none here
}
