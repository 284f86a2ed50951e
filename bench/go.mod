// Comparisons with other projects' libraries. A module of its own, so that their
// dependencies never reach the importers of lbprim.
module github.com/lbprim/lbprim/bench

go 1.26.0

require (
	github.com/Yiling-J/theine-go v0.6.3
	github.com/buraksezer/consistent v0.10.0
	github.com/dchest/siphash v1.2.3
	github.com/dgraph-io/ristretto/v2 v2.4.2
	github.com/dgryski/go-maglev v0.0.0-20200611225407-8961b9b1b8e6
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f
	github.com/jellydator/ttlcache/v3 v3.4.1
	github.com/kkdai/maglev v0.2.0
	github.com/lbprim/lbprim v0.0.0
	github.com/maypok86/otter/v2 v2.4.0
	github.com/puzpuzpuz/xsync/v4 v4.5.0
	github.com/stretchr/testify v1.12.1
	gvisor.dev/gvisor v0.0.0-20250503011706-39ed1f5ac29c
	stathat.com/c/consistent v1.0.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/dustin/go-humanize v1.0.1 // indirect
	github.com/google/btree v1.1.3 // indirect
	github.com/klauspost/cpuid/v2 v2.0.9 // indirect
	github.com/zeebo/xxh3 v1.0.2 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/time v0.7.0 // indirect
)

require (
	github.com/gaissmai/bart v0.30.0
	github.com/google/gopacket v1.1.19
	github.com/hashicorp/golang-lru/v2 v2.0.7
	golang.org/x/crypto v0.59.0
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/sys v0.50.0
	golang.org/x/text v0.44.0 // indirect
)

replace github.com/lbprim/lbprim => ../
