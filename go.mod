module github.com/lbprim/lbprim

go 1.26.0

require (
	github.com/dchest/siphash v1.2.3
	github.com/google/gopacket v1.1.19
	github.com/hashicorp/golang-lru/v2 v2.0.7
	github.com/stretchr/testify v1.12.1
	go.yaml.in/yaml/v3 v3.0.5
	golang.org/x/net v0.62.0
	golang.org/x/sys v0.50.0
)

require golang.org/x/text v0.43.0 // indirect
