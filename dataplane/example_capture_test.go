package dataplane_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/flowexport"
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

// Tell a collector about the flows of all services.
func ExampleFlowExport() {
	conn, err := net.Dial("udp", "127.0.0.1:4739")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	exporter, err := flowexport.New(&flowexport.Config{Collector: conn})
	if err != nil {
		fmt.Println(err)
		return
	}
	plane, err := dataplane.New(&dataplane.Config{Flows: &dataplane.FlowExport{Exporter: exporter, All: true, Active: 5 * time.Minute}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer plane.Close()
	fmt.Println(plane.FlowStats().Reported, "flows")
	// Output: 0 flows
}
