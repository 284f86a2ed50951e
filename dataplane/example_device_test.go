package dataplane_test

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/lbprim/lbprim/dataplane"
)

// wire is a device of one's own: here one on which nothing ever comes. What it says of itself is up to it; a device without these methods has
// plain IP packets, complete checksums, and one interface.
type wire struct{ closed chan struct{} }

func (w wire) Read([][]byte, []int, int) (int, error)       { <-w.closed; return 0, os.ErrClosed }
func (w wire) Write(bufs [][]byte, offset int) (int, error) { return len(bufs), nil }
func (w wire) BatchSize() int                               { return 64 }
func (w wire) Close() error                                 { close(w.closed); return nil }

func (w wire) Ethernet() bool    { return true } // packets begin with an Ethernet header
func (w wire) Ports() bool       { return true } // an interface's index stands before each packet
func (w wire) VirtioHeader() int { return 10 }   // and what the network card has left to do
func (w wire) Index() int        { return 7 }    // queues of one interface have one number

// What a device may say of itself.
func ExampleDevice() {
	var d dataplane.Device = wire{make(chan struct{})}
	defer d.Close()
	if f, ok := d.(dataplane.Framer); ok {
		fmt.Println("Ethernet:", f.Ethernet())
	}
	if p, ok := d.(dataplane.Ported); ok {
		fmt.Println("ports:", p.Ports())
	}
	if o, ok := d.(dataplane.Offloader); ok {
		fmt.Println("bytes of virtio-net header:", o.VirtioHeader())
	}
	if i, ok := d.(dataplane.Indexed); ok {
		fmt.Println("interface:", i.Index())
	}
	// Output:
	// Ethernet: true
	// ports: true
	// bytes of virtio-net header: 10
	// interface: 7
}

// Sessions outlive a restart of the program.
func ExamplePlane_Restore() {
	before := newPlane()
	syn := []byte{
		0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0x55, 0xbf, 198, 51, 100, 7, 192, 0, 2, 80, // IPv4
		0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, 2, 16, 0, 0x8a, 0x6d, 0, 0, // TCP, SYN
	}
	buf := append(make([]byte, dataplane.ReadOffset), syn...)
	verdicts := make([]dataplane.Verdict, 1)
	before.Process(time.Now(), [][]byte{buf}, []int{len(syn)}, dataplane.ReadOffset, verdicts)
	var state bytes.Buffer
	if _, err := before.WriteTo(&state); err != nil {
		log.Fatal(err)
	}
	for _, w := range before.WorkerStats() {
		var st dataplane.WorkerStats = w //nolint:staticcheck // the name of the type is what is shown
		fmt.Println(st.Name, st.Read.Packets, "packet,", st.Dropped, "dropped")
	}
	before.Close()

	after := newPlane()
	defer after.Close()
	var n dataplane.Restored
	n, err := after.Restore(&state)
	fmt.Println(n.Sessions, "session,", n.Unknown, "unknown,", err)
	// Output:
	// process 1 packet, 0 dropped
	// 1 session, 0 unknown, <nil>
}
