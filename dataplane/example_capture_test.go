package dataplane_test

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/lbprim/lbprim/dataplane"
)

// Capture what is dropped, and explain one flow, while the Plane runs.
func ExamplePlane_Capture() {
	plane, err := dataplane.New(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer plane.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()

	var file bytes.Buffer // an os.File, usually
	drops, err := plane.Capture(&file, &dataplane.CaptureConfig{Filter: dataplane.Filter{Dropped: true}, MaxPackets: 1000})
	if err != nil {
		fmt.Println(err)
		return
	}
	trace, err := plane.Trace(&dataplane.TraceConfig{Filter: dataplane.Filter{Protocol: 6, B: dataplane.End{Port: 443}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	go trace.Run(ctx, func(e dataplane.Traced) { fmt.Println(e.Time, e.Explanation) })
	if err := drops.Run(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(drops.Stats().Packets, "packets")
	// Output: 0 packets
}
