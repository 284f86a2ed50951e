package dataplane_test

import (
	"fmt"

	"github.com/lbprim/lbprim/dataplane"
)

// A full Plane takes more sessions while it is at work, and those that it has go on. Fewer is for new ones.
func ExamplePlane_SetMaxSessions() {
	plane, err := serve(dataplane.Config{}, &dataplane.Service{Name: "web", Pool: twoNodes()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer plane.Close()
	const syn, ack = 0x02, 0x10
	open := func(client, node string) dataplane.Verdict {
		v, _ := process(plane, segment(client, "192.0.2.80:80", syn, 100, 0))
		process(plane, segment(node, client, syn|ack, 500, 101))
		process(plane, segment(client, "192.0.2.80:80", ack, 101, 501))
		return v
	}
	if err := plane.SetMaxSessions(1); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(open("198.51.100.7:40000", "10.0.0.11:8080"))
	fmt.Println(open("198.51.100.7:40001", "10.0.0.12:8080"))
	if err := plane.SetMaxSessions(10_000); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(open("198.51.100.7:40001", "10.0.0.12:8080"))
	fmt.Println(plane.Stats().Sessions, "of", plane.MaxSessions())
	fmt.Println(plane.SetMaxAssociations(-1))
	// Output:
	// forwarded
	// dropped
	// forwarded
	// 2 of 10000
	// dataplane: invalid configuration: MaxAssociations = -1: want 1 to 268435456, or 0 for 262144
}
