// Command policy uses package policy alone.
package main

import (
	"fmt"
	"log"

	"github.com/lbprim/lbprim/policy"
)

func main() {
	var rules []policy.Rule[string] // any type may be what a rule leads to
	for match, farm := range map[string]string{
		"192.0.2.80":                        "default farm",
		"192.0.2.80 tcp/80":                 "web farm",
		"192.0.2.80 tcp/80 from 10.0.0.0/8": "staff farm",
	} {
		m, err := policy.ParseMatch(match)
		if err != nil {
			log.Fatal(err)
		}
		rules = append(rules, policy.Rule[string]{Name: farm, Match: m, Value: farm})
	}
	table, err := policy.Compile(nil, rules...)
	if err != nil {
		log.Fatal(err) // all faults at once
	}
	p, err := policy.ParsePacket("tcp 10.1.2.3:40000 > 192.0.2.80:80")
	if err != nil {
		log.Fatal(err)
	}
	farm, _ := table.Lookup(p)
	fmt.Println("policy:", farm)
}
