// Command steering uses package steering alone.
package main

import (
	"fmt"
	"log"

	"github.com/lbprim/lbprim/steering"
)

func main() {
	pool, err := steering.NewPool(nil, steering.Node{Name: "web1"}, steering.Node{Name: "web2", Weight: 2})
	if err != nil {
		log.Fatal(err)
	}
	got := map[string]int{}
	for range 30 {
		id, err := pool.Pick(steering.Key{})
		if err != nil {
			log.Fatal(err)
		}
		name, _ := pool.Name(id)
		got[name]++
	}
	fmt.Println("steering:", got["web1"], got["web2"])
}
