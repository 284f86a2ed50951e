// Command l7 uses package policy/l7 alone.
package main

import (
	"fmt"
	"log"

	"github.com/lbprim/lbprim/policy/l7"
)

func main() {
	rules, err := l7.Compile(&l7.Config{Default: l7.Action{Do: l7.Farm, Farm: "web"}},
		l7.Rule{Index: 10, Name: "images", First: l7.Method{Kind: l7.PathPrefix, Value: "/images/"}, Action: l7.Action{Do: l7.Farm, Farm: "images"}},
	)
	if err != nil {
		log.Fatal(err)
	}
	request := "GET /images/cat.jpg HTTP/1.1\r\nHost: www.example.com\r\n\r\n"
	d := rules.Classify(l7.Input{}, []byte(request))
	fmt.Println("l7:", d.Verdict, d.Action.Farm)
}
