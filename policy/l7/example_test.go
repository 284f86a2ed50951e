package l7_test

import (
	"errors"
	"fmt"

	"github.com/lbprim/lbprim/policy/l7"
)

func ExampleCompile() {
	p, err := l7.Compile(&l7.Config{Default: l7.Action{Do: l7.Farm, Farm: "web"}},
		l7.Rule{Index: 10, Name: "images",
			First:  l7.Method{Kind: l7.Host, Value: "*.example.com"},
			Second: l7.Method{Kind: l7.PathSuffix, Value: ".jpg"},
			Action: l7.Action{Do: l7.Farm, Farm: "images"}},
		l7.Rule{Index: 20, Name: "old",
			First:  l7.Method{Kind: l7.PathPrefix, Value: "/old/"},
			Action: l7.Action{Do: l7.Redirect, Location: "https://new.example.com/"}},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	request := "GET /cat.jpg HTTP/1.1\r\nHost: www.example.com\r\n\r\n"
	for _, n := range []int{10, len(request)} {
		d := p.Classify(l7.Input{}, []byte(request[:n]))
		fmt.Printf("%v %q\n", d.Verdict, d.Action.Farm)
	}
	// Output:
	// need more ""
	// decided "images"
}

func ExampleStream() {
	p, err := l7.Compile(&l7.Config{Mode: l7.Maintain},
		l7.Rule{Index: 1, Name: "api", First: l7.Method{Kind: l7.PathPrefix, Value: "/api/"}, Action: l7.Action{Do: l7.Farm, Farm: "api"}},
		l7.Rule{Index: 2, Name: "rest", First: l7.Method{Kind: l7.PathPrefix, Value: "/"}, Action: l7.Action{Do: l7.Farm, Farm: "web"}},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	buf := []byte("POST /api/x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhiGET / HTTP/1.1\r\nHost: a\r\n\r\n")
	s := p.NewStream(l7.Input{})
	for {
		step := s.Next(buf)
		if step.Decision.Verdict != l7.NeedMore {
			fmt.Println(step.Decision.Verdict, step.Decision.Action.Farm)
		}
		if step.End {
			fmt.Println("end of request")
		}
		if step.N == 0 && step.Decision.Verdict == l7.NeedMore {
			break // wait for more bytes
		}
		buf = buf[step.N:] // after forwarding them
	}
	// Output:
	// decided api
	// end of request
	// decided web
	// end of request
}

// What a client sends behind a request for another protocol is held back until the server has
// answered. Here the server declines, and what looked like the other protocol is a request that
// a rule keeps out.
func ExampleStream_Declined() {
	p, err := l7.Compile(&l7.Config{Mode: l7.Overwrite},
		l7.Rule{Index: 10, Name: "no admin", First: l7.Method{Kind: l7.PathPrefix, Value: "/admin"}, Action: l7.Action{Do: l7.Reply, Code: 403}},
		l7.Rule{Index: 20, Name: "web", Action: l7.Action{Do: l7.Farm, Farm: "web"}},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	buf := []byte("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: nonsense\r\n\r\n" +
		"GET /admin HTTP/1.1\r\nHost: a\r\n\r\n")
	s := p.NewStream(l7.Input{})
	for len(buf) > 0 {
		step := s.Next(buf)
		if step.Decision.Verdict != l7.NeedMore {
			fmt.Println(step.Decision.Verdict, step.Decision.Rule.Name)
		}
		buf = buf[step.N:]
		if step.Upgrade {
			fmt.Printf("hold back %d bytes\n", len(buf))
			status := 200 // what the server answered
			if status != 101 {
				s.Declined()
			}
		}
	}
	// Output:
	// decided web
	// hold back 32 bytes
	// decided no admin
}

func ExampleParseHead() {
	_, _, err := l7.ParseHead([]byte("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"))
	fmt.Println(err)
	// Output: l7: malformed request: both Content-Length and Transfer-Encoding
}

func ExamplePolicy_Explain() {
	p, err := l7.Compile(nil,
		l7.Rule{Index: 10, Name: "images",
			First:  l7.Method{Kind: l7.Host, Value: "*.example.com"},
			Second: l7.Method{Kind: l7.PathSuffix, Value: ".jpg"},
			Action: l7.Action{Do: l7.Farm, Farm: "images"}},
		l7.Rule{Index: 20, Name: "web", Action: l7.Action{Do: l7.Farm, Farm: "web"}},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	e := p.Explain(l7.Input{}, []byte("GET /cat.png HTTP/1.1\r\nHost: www.example.com\r\n\r\n"))
	fmt.Print(e)
	for _, row := range e.Considered {
		if row.Second == l7.Fails {
			fmt.Println("not", row.Rule.Name)
		}
	}
	// Output:
	// decided: farm "web"
	//   skip  row 10 "images": host "*.example.com" holds, path-suffix ".jpg" fails
	//   match row 20 "web"
	// not images
}

func ExampleHead() {
	head, n, err := l7.ParseHead([]byte("POST /form HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s %s%s, %d bytes of head, %d of body\n", head.Method, head.Host, head.Path, n, head.ContentLength)
	for _, f := range head.Fields {
		fmt.Printf("%s = %s\n", f.Name, f.Value)
	}
	// Output:
	// POST a/form, 51 bytes of head, 2 of body
	// Host = a
	// Content-Length = 2
}

func ExampleRuleError() {
	_, err := l7.Compile(nil, l7.Rule{Index: 10, Name: "search",
		First:  l7.Method{Kind: l7.Regexp, Value: "q=(", In: l7.InBody},
		Action: l7.Action{Do: l7.Farm, Farm: "search"}})
	var fault *l7.RuleError
	if errors.As(err, &fault) {
		fmt.Println(fault.Name, fault.Row, fault.Field)
	}
	// Output: search 10 first
}

// The next request may follow when the reply to the one before is complete.
func ExampleReplies() {
	var r l7.Replies
	r.Expect([]byte("GET"))
	for _, piece := range []string{"HTTP/1.1 200 OK\r\nContent-Len", "gth: 5\r\n\r\nhel", "lo"} {
		r.Feed([]byte(piece))
		fmt.Println(r.Complete())
	}
	// Output:
	// false
	// false
	// true
}
