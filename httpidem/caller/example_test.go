package caller_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log"
	"net/http"

	"github.com/semel-dev/semel/httpidem/caller"
)

func ExampleAPIKey() {
	digest := sha256.Sum256([]byte("9f2c5d0e-key-of-alice"))
	scope, err := caller.APIKey("X-Api-Key", map[string]string{hex.EncodeToString(digest[:]): "alice"})
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range []string{"9f2c5d0e-key-of-alice", "guessed"} {
		r, err := http.NewRequest(http.MethodPost, "https://api.example/orders", nil)
		if err != nil {
			log.Fatal(err)
		}
		r.Header.Set("X-Api-Key", key)
		name, err := scope(r)
		fmt.Printf("%q, %v\n", name, err)
	}
	// Output:
	// "alice", <nil>
	// "", httpidem: the caller is refused: The API key is not known.
}
