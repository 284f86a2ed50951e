package steering_test

import (
	"fmt"

	"github.com/lbprim/lbprim/steering"
)

func ExamplePool() {
	p, err := steering.NewPool(nil,
		steering.Node{Name: "www1"},
		steering.Node{Name: "www2", Weight: 2},
		steering.Node{Name: "www3", Admin: steering.Draining},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 6 {
		id, err := p.Pick(steering.Key{})
		if err != nil {
			fmt.Println(err)
			return
		}
		name, _ := p.Name(id)
		fmt.Print(name, " ")
	}
	// Output: www1 www2 www2 www1 www2 www2
}
