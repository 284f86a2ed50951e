// A program of somebody else, which imports each package of lbprim alone, and all of them.
module example.com/external

go 1.26.0

require github.com/lbprim/lbprim v0.0.0

require (
	github.com/dchest/siphash v1.2.3 // indirect
	github.com/google/gopacket v1.1.19 // indirect
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace github.com/lbprim/lbprim => ../../../..
