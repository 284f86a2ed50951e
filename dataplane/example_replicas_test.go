package dataplane_test

import (
	"fmt"

	"github.com/lbprim/lbprim/dataplane"
)

// The tables of a Plane that its backup follows: with steering/cluster each is given to Cluster.Follow.
func ExamplePlane_Replicas() {
	p, err := dataplane.New(&dataplane.Config{AssociationChanges: 1 << 12, MaxSessions: 64, MaxAssociations: 64})
	if err != nil {
		panic(err)
	}
	defer p.Close()
	follow := func(name string, r dataplane.Replica) { fmt.Println(name, r.LastSeq()) }
	for name, r := range p.Replicas() {
		follow(name, r)
	}
	// Output: associations 0
}
