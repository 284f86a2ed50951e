package flowexport_test

import (
	"fmt"

	"github.com/lbprim/lbprim/dataplane/flowexport"
)

// One flow in ten is exported, chosen by its hash: all its reports or none.
func ExampleSampler() {
	s := flowexport.NewSampler(10)
	chosen := 0
	for hash := uint64(0); hash < 1000; hash++ {
		h := hash * 0x9e3779b97f4a7c15 // as evenly spread as hashes are
		if s.Sampled(h) {
			chosen++
		}
	}
	fmt.Println(chosen > 50 && chosen < 150)
	fmt.Println(flowexport.Sampler{}.Sampled(1), "without a rate, all are")
	// Output:
	// true
	// true without a rate, all are
}
