package devtest_test

import (
	"fmt"

	"github.com/lbprim/lbprim/dataplane/devtest"
)

// A cable that loses every packet, and counts it.
func ExampleDevice_Stats() {
	a, b, err := devtest.Pair(&devtest.Config{Loss: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	defer a.Close()
	if _, err := a.Write([][]byte{[]byte("into the void")}, 0); err != nil {
		fmt.Println(err)
		return
	}
	var st devtest.Stats = a.Stats() //nolint:staticcheck // the name of the type is what is shown
	fmt.Println("written", st.Written, "lost", st.Lost)
	// Output: written 1 lost 1
}
