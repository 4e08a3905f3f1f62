"""What every layer speaks of: element types, shapes, arguments, and their exchange with other libraries."""
